"""Instruction counts: what one operation costs in instructions, Python calls, SQL statements and WAL bytes.

`python -m benchmarks.instructions` (`make instructions`) compares them with `baseline.json`, or with another commit.
Time on a shared machine cannot show a change of 3 %; these counts can. Start with `workload`, the measured program,
which runs in processes of its own; `measurement` starts them, `comparison` judges what they counted.
"""
