"""Run every benchmark, one after another."""

from __future__ import annotations

from benchmarks import latency, million, pruning, scale, throughput, vocabulary

if __name__ == "__main__":
    for benchmark in (throughput, latency, scale, million, pruning, vocabulary):
        benchmark.main()
