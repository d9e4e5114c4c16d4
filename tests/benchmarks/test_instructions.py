"""The comparisons, refusals and output of `make instructions`. Scripts stand for valgrind and perf."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.instructions import __main__ as command
from benchmarks.instructions import baseline, commits
from benchmarks.instructions.build import Build, differences, this_build
from benchmarks.instructions.commits import checked_out, last_change_of
from benchmarks.instructions.comparison import Row, compared, is_worse, table
from benchmarks.instructions.counters import Callgrind, CannotMeasure, Perf, find_counter
from benchmarks.instructions.figures import MEASURES, OPERATIONS, Figures, Measure, Subject, chosen
from benchmarks.instructions.measurement import WORKLOAD, Job, Measurement, Outcome
from tests.postgres import find_installation

STEP = Subject("step", "sqlite")
CLAIM = Subject("claim", "postgres")


def costs(instructions: float, statements: float = 3.0) -> dict[Measure, float]:
    return {"instructions": instructions, "calls": 100.0, "statements": statements, "wal_bytes": 4_000}


# Comparing


@pytest.mark.parametrize(
    ("before", "now", "verdict"),
    [
        (1_000, 1_030, "same"),
        (1_000, 1_031, "WORSE"),
        (1_000, 970, "same"),
        (1_000, 969, "better"),
        (0, 0, "same"),
        (0, 1, "WORSE"),
        (1, 0, "better"),
        (None, 1_000, "new"),
    ],
)
def test_a_figure_may_grow_by_three_percent(before: float | None, now: float, verdict: str) -> None:
    assert Row(STEP, "instructions", before, now).verdict == verdict


def test_a_single_worse_figure_fails_the_comparison() -> None:
    before: Figures = {STEP: costs(1_000), CLAIM: costs(1_000)}

    assert is_worse(compared(before, {STEP: costs(500), CLAIM: costs(1_000, statements=3.1)}))
    assert not is_worse(compared(before, {STEP: costs(500), CLAIM: costs(1_000)}))


def test_the_cost_of_one_operation_is_the_extra_cost_of_the_longer_section_per_extra_operation() -> None:
    step = next(operation for operation in OPERATIONS if operation.name == "step")

    assert step.sizes == (40, 80)
    assert step.per_operation(500, 2_500, "calls") == 10  # 40 runs more, of five steps each
    assert str(step.per_operation(500, 499, "instructions")) == "0.0"


def test_the_table_shows_each_figure_before_and_now() -> None:
    rows = compared({STEP: costs(400_000)}, {STEP: costs(424_000, statements=2.5), CLAIM: costs(522_140)})

    assert table(rows, "baseline").splitlines() == [
        "operation                      store     measure         baseline      now  change  verdict",
        "a step in five-step workflows  sqlite    instructions     400,000  424,000   +6.0%  WORSE",
        "a step in five-step workflows  sqlite    Python calls       100.0    100.0   +0.0%  same",
        "a step in five-step workflows  sqlite    SQL statements     3.000    2.500  -16.7%  better",
        "a step in five-step workflows  sqlite    WAL bytes          4,000    4,000   +0.0%  same",
        "a claim                        postgres  instructions           –  522,140          new",
        "a claim                        postgres  Python calls           –    100.0          new",
        "a claim                        postgres  SQL statements         –    3.000          new",
        "a claim                        postgres  WAL bytes              –    4,000          new",
    ]


# The build


def test_a_build_is_identified_by_its_interpreter_counter_and_libraries() -> None:
    build = this_build("callgrind of valgrind-3.19.0", "16")

    assert list(build) == ["python", "compiler", "machine", "counter", "sqlite", "postgres", "msgspec"]
    assert differences(build, this_build("callgrind of valgrind-3.19.0", "16")) == []


def test_the_differences_between_two_builds_are_named() -> None:
    assert differences({"python": "3.11", "msgspec": "0.20"}, {"python": "3.13", "msgspec": "0.20"}) == [
        "python 3.13 instead of 3.11"
    ]
    assert differences({"old": "1"}, {"new": "2"}) == ["new 2 instead of unknown", "old unknown instead of 1"]


def test_figures_of_the_same_build_are_stored_beside_others(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    build: Build = {"python": "3.11"}
    baseline.store({STEP: costs(1), CLAIM: costs(2)}, build, path)

    baseline.store({CLAIM: costs(3)}, build, path)

    stored = baseline.load(path)
    assert stored is not None
    assert stored.build == build
    assert stored.known() == {STEP: costs(1), CLAIM: costs(3)}


def test_figures_of_another_build_replace_the_stored_ones(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    baseline.store({STEP: costs(1), CLAIM: costs(2)}, {"python": "3.11"}, path)

    baseline.store({CLAIM: costs(3)}, {"python": "3.13"}, path)

    stored = baseline.load(path)
    assert stored is not None
    assert stored.known() == {CLAIM: costs(3)}


def test_the_baseline_of_this_repository_has_every_figure() -> None:
    stored = baseline.load(baseline.PATH)

    assert stored is not None
    assert {subject: set(found) for subject, found in stored.known().items()} == {
        Subject(operation.name, store): set(MEASURES) for operation, store in chosen(None, None)
    }


# Counters


def script(folder: Path, name: str, code: str) -> str:
    """A program that prints its version, or otherwise executes something else."""
    path = folder / name
    lines = ["import pathlib, sys", f"'--version' in sys.argv and sys.exit(print('{name}-1.0'))", code]
    path.write_text("\n".join([f"#!{sys.executable}", *lines]))
    path.chmod(0o755)
    return str(path)


def option(name: str) -> str:
    """Code that finds the value of an option."""
    return f"next(word.partition('=')[2] for word in sys.argv if word.startswith('{name}='))"


def workload(meter: str, sizes: Sequence[int], *more: str) -> list[str]:
    return [meter, *map(str, sizes), *more]


def test_sections_are_the_even_parts_of_the_profile(tmp_path: Path) -> None:
    write = "pathlib.Path(f'{out}.{part}').write_text(f'part: {part}\\ntotals: {total}\\n')"
    parts = "enumerate([900, 10, 3, 25], start=1)"
    code = f"out = {option('--callgrind-out-file')}\nfor part, total in {parts}: {write}"
    callgrind = Callgrind(script(tmp_path, "valgrind", code))

    assert callgrind.count(workload, (5, 10), tmp_path, os.environ) == [10, 25]


def test_a_profile_without_sections_does_not_count_as_zero(tmp_path: Path) -> None:
    callgrind = Callgrind(script(tmp_path, "valgrind", "pass"))

    with pytest.raises(CannotMeasure, match=r"callgrind wrote no callgrind.out.2"):
        callgrind.count(workload, (5, 10), tmp_path, os.environ)


def test_perf_counts_each_section_in_a_separate_process(tmp_path: Path) -> None:
    size = "sys.argv[sys.argv.index('perf') + 1]"
    code = f"pathlib.Path({option('--output')}).write_text({size} + '00,,instructions:u,1,2')"
    perf = Perf(script(tmp_path, "perf", code))

    assert perf.count(workload, (5, 10), tmp_path, os.environ) == [500, 1_000]


def test_a_workload_that_fails_says_why(tmp_path: Path) -> None:
    callgrind = Callgrind(script(tmp_path, "valgrind", "sys.exit('a line\\nImportError: no such name')"))

    with pytest.raises(CannotMeasure, match="the workload ended with 1: ImportError: no such name"):
        callgrind.count(workload, (5, 10), tmp_path, os.environ)


def test_callgrind_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "valgrind", "")
    script(tmp_path, "perf", "")
    monkeypatch.setenv("PATH", str(tmp_path))

    assert find_counter(tmp_path).name == "callgrind of valgrind-1.0"


def test_perf_is_used_where_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "perf", f"pathlib.Path({option('--output')}).write_text('1234,,instructions:u,1,2')")
    monkeypatch.setenv("PATH", str(tmp_path))

    assert find_counter(tmp_path).name == "perf stat (perf-1.0)"


# Refusals

NOT_SUPPORTED = f"pathlib.Path({option('--output')}).write_text('<not supported>,,instructions:u,0,100.00,,')"


@pytest.mark.parametrize(
    ("perf", "reason"),
    [(None, "neither is `perf`"), (NOT_SUPPORTED, "`perf stat` counts no instructions on this machine")],
)
def test_without_a_counter_the_command_says_so_and_fails(
    perf: str | None,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if perf is not None:
        script(tmp_path, "perf", perf)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert command.main([]) == 2
    expected = f"instructions cannot be counted: valgrind is not installed, and {reason}; install valgrind\n"
    assert capsys.readouterr().err == expected


def test_an_operation_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        command.main(["--only", "step,stop"])

    assert refused.value.code == 2
    assert "there is no operation 'stop'; there are step, pipeline, lone-step" in capsys.readouterr().err


# The command

STEP_ONLY = ["--only", "step", "--store", "sqlite"]


class Machine:
    """A repository with a baseline, on a machine with predefined counts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.counts: dict[str, float] = {"": 1_000}
        """Instructions, by the name of the commit, which is empty here, or by commit and operation."""

    @property
    def baseline(self) -> Path:
        return self.folder / "baseline.json"

    def git(self, *words: str) -> str:
        identity = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.org"]
        done = subprocess.run(["git", *identity, *words], cwd=self.folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(self) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "Change something")
        return self.git("rev-parse", "HEAD")

    def measure(self, jobs: Sequence[Job]) -> list[Outcome]:
        return [self._outcome(job) for job in jobs]

    def _outcome(self, job: Job) -> Outcome:
        count = self.counts.get(job.name, self.counts.get(f"{job.name} {job.operation.name}"))
        return Outcome(job, {}, "ImportError") if count is None else Outcome(job, costs(count))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    tools, folder = tmp_path / "tools", tmp_path / "project"
    tools.mkdir()
    folder.mkdir()
    script(tools, "valgrind", "")
    made = Machine(folder)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(commits, "PROJECT", folder)
    monkeypatch.setattr(baseline, "PATH", made.baseline)
    monkeypatch.setattr(Measurement, "measure", made.measure)
    made.git("init", "--quiet")
    build = this_build("callgrind of valgrind-1.0", str(find_installation().version))
    baseline.store({STEP: costs(1_000)}, build, made.baseline)
    return made


@pytest.mark.parametrize(("now", "code"), [(1_000, 0), (900, 0), (1_031, 1)])
def test_the_command_fails_when_a_figure_got_worse_than_the_baseline(machine: Machine, now: float, code: int) -> None:
    machine.counts[""] = now

    assert command.main(STEP_ONLY) == code


def test_a_worse_figure_is_reported_with_the_way_to_accept_it(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.counts[""] = 2_000

    command.main(STEP_ONLY)

    assert 'make instructions ARGS="--update"' in capsys.readouterr().out


def test_an_update_accepts_the_measured_figures(machine: Machine) -> None:
    machine.counts[""] = 2_000

    assert command.main([*STEP_ONLY, "--update"]) == 0
    assert command.main(STEP_ONLY) == 0


def test_json_has_every_figure(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.counts[""] = 1_100

    assert command.main([*STEP_ONLY, "--json"]) == 1

    answer = json.loads(capsys.readouterr().out)
    assert answer["before"] == "baseline"
    assert answer["figures"][0] == {
        "operation": "step",
        "store": "sqlite",
        "measure": "instructions",
        "before": 1_000,
        "now": 1_100,
        "change": 0.1,
        "verdict": "worse",
    }


@pytest.mark.parametrize(("now", "code"), [(500, 0), (600, 1)])
def test_with_another_build_two_commits_are_compared(
    machine: Machine, now: float, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline.store({STEP: costs(1)}, {"python": "another"}, machine.baseline)
    stored = machine.commit()
    machine.commit()
    machine.counts = {"": now, stored[:10]: 500}

    assert command.main(STEP_ONLY) == code
    output = capsys.readouterr().err
    assert "the stored baseline is of another build (python " in output
    assert f"comparing with the commit that last changed the baseline, {stored[:10]}" in output


def test_a_commit_may_be_named(machine: Machine) -> None:
    first = machine.commit()
    machine.commit()
    machine.counts = {"": 1_000, first[:10]: 500}

    assert command.main([*STEP_ONLY, "--base", "HEAD~1"]) == 1
    assert command.main([*STEP_ONLY, "--base", "HEAD~7"]) == 2


def test_an_operation_that_a_commit_did_not_have_is_new(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    base = machine.commit()
    machine.counts[f"{base[:10]} step"] = 1_000

    assert command.main(["--only", "step,claim", "--store", "sqlite", "--base", "HEAD"]) == 0
    assert "8 figures: 4 same, 4 new" in capsys.readouterr().out


def test_a_commit_without_any_measurement_is_not_compared(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    base = machine.commit()

    assert command.main([*STEP_ONLY, "--base", "HEAD"]) == 2
    assert f"step on sqlite at {base[:10]} cannot be measured: ImportError" in capsys.readouterr().err


def test_an_operation_that_could_not_be_measured_is_not_judged(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.counts = {}

    assert command.main(STEP_ONLY) == 2
    assert "step on sqlite cannot be measured: ImportError" in capsys.readouterr().err


def test_a_partial_measurement_of_another_build_does_not_become_the_baseline(machine: Machine) -> None:
    baseline.store({STEP: costs(1)}, {"python": "another"}, machine.baseline)
    before = machine.baseline.read_bytes()

    assert command.main([*STEP_ONLY, "--update"]) == 2
    assert machine.baseline.read_bytes() == before


def test_the_files_of_a_commit_exist_only_inside_the_block(machine: Machine) -> None:
    old = machine.baseline.read_text()
    first = machine.commit()
    machine.baseline.write_text("{}")
    machine.commit()

    with checked_out(first) as tree:
        assert (tree / "baseline.json").read_text() == old

    assert not tree.exists()
    assert len(machine.git("worktree", "list").splitlines()) == 1


def test_a_file_that_no_commit_has_changed_has_no_commit(machine: Machine) -> None:
    machine.baseline.unlink()
    machine.commit()

    with pytest.raises(CannotMeasure, match="name the one to compare with: --base REV"):
        last_change_of(machine.baseline)


# The measured program


def started(folder: Path, source: Path) -> subprocess.Popen[str]:
    folder.mkdir()
    place = ["--url", f"sqlite:///{folder}/measured.db", "--source", str(source)]
    words = ["claim", *place, "--sizes", "3", "6", "--meter", "counts"]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    return subprocess.Popen(
        [sys.executable, "-P", str(WORKLOAD), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


@pytest.mark.long
def test_the_measured_program_counts_the_same_each_time(tmp_path: Path) -> None:
    processes = [started(tmp_path / name, commits.PROJECT / "src") for name in ("one", "two")]
    (one, _), (two, trouble) = [process.communicate() for process in processes]

    assert json.loads(one) == json.loads(two), trouble
    short, long = json.loads(one)
    assert all(0 < short[measure] < long[measure] for measure in ("calls", "statements", "wal_bytes"))


@pytest.mark.long
def test_the_measured_program_refuses_an_engine_from_another_folder(tmp_path: Path) -> None:
    with started(tmp_path / "one", tmp_path) as process:
        _, output = process.communicate()

    assert process.returncode == 1
    assert f"which is not below {tmp_path}" in output
