"""Run every benchmark, one after another."""

from __future__ import annotations

from benchmarks import latency, scale, throughput, vocabulary

if __name__ == "__main__":
    throughput.main()
    latency.main()
    scale.main()
    vocabulary.main()
