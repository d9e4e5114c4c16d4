"""Run every benchmark, one after another."""

from __future__ import annotations

from benchmarks import latency, million, pruning, scale, tasks, throughput, vocabulary

if __name__ == "__main__":
    for benchmark in (throughput, tasks, latency, scale, million, pruning, vocabulary):
        benchmark.main()
