"""How losses are computed: streamed over tiles, over ranks and over more than two views."""
