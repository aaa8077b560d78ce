"""Run the command line by `python -m regbench`."""

from regbench.cli import main

main(prog_name="regbench")
