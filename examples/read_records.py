"""Records of finished runs with pandas: python examples/read_records.py runs/losses, or any
other folders of runs.
"""

import sys

import regbench

frame = regbench.load_records(*(sys.argv[1:] or ["runs"]))
print(f"{frame['cell_id'].nunique()} cells with {len(frame)} scores")

# A row for each method, a column for each score on the test split.
test = frame[frame["split"] == "test"]
print(test.pivot_table("value", "label", "score").round(2).to_string())

# The cost of each cell: seconds of training and peak memory.
cells = frame.drop_duplicates("cell_id")
cost = [name for name in ("train_s", "peak_memory_bytes") if name in cells]
print(cells.groupby("label")[cost].mean().round(1).to_string())

# Each row leads back to its run.
print(f"to run the first again: {frame['command'].iloc[0]}")
