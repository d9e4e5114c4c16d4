"""Run every benchmark, one after another."""

from __future__ import annotations

from benchmarks import flows, latency, million, pruning, scale, schedules, tasks, throughput, vocabulary

if __name__ == "__main__":
    for benchmark in (throughput, tasks, flows, latency, scale, schedules, million, pruning, vocabulary):
        benchmark.main()
