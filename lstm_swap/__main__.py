"""`python -m lstm_swap`."""

from lstm_swap.cli import main

main(prog_name="lstm-swap")
