"""A sweep from Python: python examples/run_sweep.py, or with settings of your own, such as
epochs=20.

The same command goes on where it was stopped, and leaves alone what is finished.
"""

import logging
import sys

import regbench

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # a line for each cell that ends
    frame = regbench.sweep(
        "losses", sys.argv[1:], cells="method=vicreg,sfrik_l3 seed=0,1,2 epochs=5"
    )
    scores = (
        frame[frame["split"] == "test"]
        .groupby(["label", "score"])["value"]
        .agg(["mean", "std", "count"])
    )
    print(scores.round(2).to_string())
    folder = frame["record"].iloc[0].rpartition("/")[0].rpartition("/")[0]
    print(f"report: {regbench.report(folder).page}")
