"""Instruction counts: the cost of one operation in instructions, Python calls, SQL statements and WAL bytes.

`python -m benchmarks.instructions` (`make instructions`) compares them with `baseline.json`, or with another commit.
Time on a shared machine cannot show a change of 3 %; these counts can. Start with `workload`, the measured program,
which runs in separate processes; `measurement` starts them, `comparison` judges the counts.
"""
