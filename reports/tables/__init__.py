"""Tables of rows, ours and the paper's."""
