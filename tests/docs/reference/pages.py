"""The pages of the reference: which names are on which page, and what the page says before them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import holdfast
import holdfast.isolated
import holdfast.testing
import holdfast.typing
from tests.docs.reference import introductions
from tests.docs.reference.declarations import Declaration, declaration_of
from tests.docs.reference.entries import Entry, rendered
from tests.docs.reference.prose import linked, summary
from tests.docs.reference.schemas import SCHEMAS, schemas

MODULES: Sequence[ModuleType] = (holdfast, holdfast.typing, holdfast.isolated, holdfast.testing)

NOTE = "<!-- Made by `make reference` from the docstrings. Do not edit. -->"


@dataclass(frozen=True)
class ReferencePage:
    """A page: its file name without `.md`, its title, and what is on it."""

    file: str
    title: str
    about: str
    entries: Sequence[Entry]


PAGES = (
    ReferencePage(
        "holdfast",
        "Holdfast",
        "the object: decorators, workers, hooks and namespaces",
        [
            Entry("Holdfast", "hf", ["close"], is_constructed=True),
            Entry("Holdfast", "hf", ["workflow", "task", "step", "pipeline", "schedule", "include"], "Declaring"),
            Entry("Holdfast", "hf", ["worker", "on", "metrics"], "Executing and observing"),
            Entry(
                "Holdfast",
                "hf",
                ["flows", "schedules", "topics", "types", "dead_letters", "workers", "sync"],
                "Namespaces",
                is_list=True,
            ),
        ],
    ),
    ReferencePage(
        "starting",
        "Starting and finding runs",
        "`hf.start` and its like, `hf.list`, `hf.emit`, and your own transactions",
        [
            Entry("Holdfast", "hf", ["start", "start_many", "execute"], "Starting"),
            Entry("Holdfast", "hf", ["run", "list", "runs", "check"], "Finding"),
            Entry("Holdfast", "hf", ["emit"], "Publishing"),
            Entry("Holdfast", "hf", ["connection", "start_in", "send_in", "emit_in"], "In your own transactions"),
            Entry("AsyncList"),
        ],
    ),
    ReferencePage(
        "run-handles",
        "Run handles",
        "`run`: result, state, history and messages of one run",
        [
            Entry("RunHandle", "run", ["id", "created", "result", "info", "history", "audit", "explain", "value"]),
            Entry("RunHandle", "run", ["send", "request", "send_in", "messages", "drop_message"], "Messages"),
        ],
    ),
    ReferencePage(
        "run-controls",
        "Controlling a run",
        "`run.cancel`, `run.pause`, `run.recover` and the other controls of one run",
        [
            Entry(
                "RunHandle",
                "run",
                ["cancel", "pause", "resume", "wake", "evict", "recover", "rewind", "fork", "delete"],
                "Controls",
            )
        ],
    ),
    ReferencePage(
        "selections",
        "Selections",
        "`hf.runs(…)`: control of many runs, with a dry run and a report",
        [Entry("Selection", "runs"), Entry("SelectionReport"), Entry("SelectedRun")],
    ),
    ReferencePage(
        "schedules",
        "Schedules",
        "`hf.schedules`",
        [Entry("Schedules", "hf.schedules"), Entry("ScheduleInfo", "schedule")],
    ),
    ReferencePage(
        "flows",
        "Flows",
        "`hf.flows`: register, list and read workflows whose program is text",
        [
            Entry("Flows", "hf.flows"),
            *map(Entry, ("FlowInfo", "RegisteredFlowInfo")),
            Entry("FlowRefused"),
            Entry("Mistake"),
        ],
    ),
    ReferencePage(
        "topics-and-types",
        "Topics, types, dead letters and workers",
        "`hf.topics`, `hf.types`, `hf.dead_letters`, `hf.workers`",
        [
            Entry("Topics", "hf.topics"),
            Entry("Types", "hf.types"),
            Entry("DeadLetters", "hf.dead_letters"),
            Entry("Workers", "hf.workers"),
        ],
    ),
    ReferencePage(
        "context",
        "Context",
        "`ctx` in a workflow: steps, transactions, messages to others, time and chance",
        [
            Entry("Context", "ctx", ["step", "tx"]),
            Entry("Context", "ctx", ["send", "emit", "set_value"], "Telling others"),
            Entry("Context", "ctx", ["run", "logger", "now", "random", "uuid"], "Values that replay"),
            Entry("Context", "ctx", ["version", "removed"], "Changing code"),
            Entry("RunView"),
        ],
    ),
    ReferencePage(
        "waiting",
        "Waiting in a workflow",
        "`ctx.sleep`, `ctx.receive`, `ctx.wait_event`",
        [
            Entry("Context", "ctx", ["sleep", "sleep_until"], "Time"),
            Entry("Context", "ctx", ["receive", "receive_batch", "receive_message"], "Messages"),
            Entry("Context", "ctx", ["wait_event"], "Events"),
            Entry("Message", "message"),
        ],
    ),
    ReferencePage(
        "children",
        "Child runs",
        "`ctx.start`, `ctx.call`, `ctx.map`",
        [Entry("Context", "ctx", ["start", "call", "map"], "Starting"), Entry("Child", "child")],
    ),
    ReferencePage(
        "branches-and-loops",
        "Branches and loops",
        "`ctx.join`, `ctx.race`, `ctx.loop`, `ctx.continue_as_new`",
        [
            Entry("Context", "ctx", ["join", "race", "first_settled"], "Branches"),
            Entry("Context", "ctx", ["loop", "continue_as_new"], "Loops and generations"),
            Entry("Continue", is_constructed=True),
            Entry("Break", is_constructed=True),
        ],
    ),
    ReferencePage(
        "other-contexts",
        "Contexts of `def` workflows, tasks and steps",
        "`SyncContext`, `TaskContext` and `step_info()`",
        [
            Entry("SyncContext", "ctx", like="ctx"),
            Entry("SyncChild", "child", like="child"),
            Entry("TaskContext", "ctx"),
            Entry("step_info"),
            Entry("StepInfo", "info"),
        ],
    ),
    ReferencePage(
        "registry",
        "Registry and decorators",
        "`Registry`, and the options of `@hf.workflow`, `@hf.task`, `@hf.step` and `hf.pipeline`",
        [
            Entry("WorkflowDecorator", "hf.workflow"),
            Entry("TaskDecorator", "hf.task"),
            Entry("StepDecorator", "hf.step"),
            Entry("PipelineDeclaration", "hf.pipeline"),
            Entry("PipelineOptions"),
            Entry("Registry", "registry", is_constructed=True),
        ],
    ),
    ReferencePage(
        "decorated-functions",
        "Decorated functions",
        "what the decorators make of a function, and `bind` for arguments by name",
        [
            Entry("Workflow", "workflow"),
            Entry("SyncWorkflow", "sync_workflow"),
            Entry("Pipeline", "pipeline"),
            Entry("Task", "task"),
            Entry("AsyncTask"),
            Entry("Step", "step"),
            Entry("Call", "call"),
            Entry("Startable", "startable"),
        ],
    ),
    ReferencePage(
        "options",
        "Options",
        "the keywords of `hf.start`, `ctx.start`, `ctx.step`, schedules and filters",
        [*map(Entry, ("StartOptions", "ChildOptions", "StepKeywords", "ScheduleOptions", "Filter"))],
    ),
    ReferencePage(
        "retry",
        "Retry policies",
        "`Retry`",
        [Entry("Retry", is_constructed=True)],
    ),
    ReferencePage(
        "signals",
        "Signals",
        "`Signal`, and the names of all signals for `hf.on`",
        [Entry("Signal")],
    ),
    ReferencePage(
        "run-records",
        "Records of runs",
        "what `info`, `history`, `audit`, `list` and `check` return",
        [
            *map(Entry, ("RunInfo", "RunState", "WaitInfo", "EntryInfo", "AuditInfo", "MessageInfo")),
            Entry("ErrorRecord", "record"),
            *map(Entry, ("RunCheck", "Fit")),
        ],
    ),
    ReferencePage(
        "store-records",
        "Records of a store",
        "topics, types, workers and dead letters",
        [*map(Entry, ("TopicInfo", "TypeInfo", "WorkerInfo", "DeadLetterInfo"))],
    ),
    ReferencePage(
        "moving",
        "Moving between stores",
        "`hf.export`, `hf.import_` and their reports",
        [
            Entry("Holdfast", "hf", ["export", "import_"], "Exporting and importing"),
            *map(Entry, ("Export", "LeftRun", "ImportReport", "RefusedRun")),
        ],
    ),
    ReferencePage(
        "worker",
        "Workers and metrics",
        "`hf.worker(…)` and `hf.metrics`",
        [Entry("Worker", "worker"), Entry("Metrics", "metrics")],
    ),
    ReferencePage(
        "errors",
        "Errors",
        "the tree, and the errors of programs that start, find and control runs",
        [
            *map(Entry, ("HoldfastError", "InvalidRequest", "NotSerializable", "PayloadTooLarge", "UnknownWorkflow")),
            *map(Entry, ("Unreadable", "KeyConflict", "RunNotFound", "ScheduleNotFound", "RunFinished", "RunBusy")),
            Entry("RunFailed", "error"),
            *map(Entry, ("RunCancelled", "StoreUnavailable", "SchemaOutOfDate")),
        ],
    ),
    ReferencePage(
        "workflow-errors",
        "Errors in workflows",
        "what steps, waits, children and branches raise, and what you raise yourself",
        [
            Entry("StepFailed", "failure"),
            *map(Entry, ("StepTimeout", "WaitTimeout")),
            Entry("ChildFailed", "child_failure"),
            *map(Entry, ("JoinFailed", "RaceFailed", "HistoryDiverged", "WorkflowViolation", "LeaseLost")),
            *map(Entry, ("Fatal", "Rollback")),
        ],
    ),
    ReferencePage(
        "sync",
        "Blocking code",
        "`hf.sync`: the blocking version of `hf`, for Django, Flask and scripts",
        [
            Entry("Sync", "hf.sync", like="hf"),
            Entry("SyncRunHandle", "run", like="run"),
            Entry("SyncSelection", "runs", like="runs"),
            Entry("SyncSchedules", "hf.sync.schedules", like="hf.schedules"),
            Entry("SyncFlows", "hf.sync.flows", like="hf.flows"),
            Entry("SyncTopics", "hf.sync.topics", like="hf.topics"),
            Entry("SyncTypes", "hf.sync.types", like="hf.types"),
            Entry("SyncDeadLetters", "hf.sync.dead_letters", like="hf.dead_letters"),
            Entry("SyncWorkers", "hf.sync.workers", like="hf.workers"),
            Entry("SyncExport", "export", like="export"),
        ],
    ),
    ReferencePage(
        "isolated-runs",
        "Isolated runs",
        "`isolated.advance`, mail for a run, and its outbox",
        [
            *map(Entry, ("advance", "Advanced", "IsolatedOptions", "message", "event", "child_ended", "cancel")),
            *map(Entry, ("delivered", "OutboxItem")),
        ],
    ),
    ReferencePage(
        "namespace-drivers",
        "Namespace drivers",
        "`NamespaceDriver`, the drivers that are included, and their error",
        [
            Entry("NamespaceDriver", "driver"),
            Entry("DictionaryNamespace", "dictionary", is_constructed=True),
            Entry("SqliteNamespace", "file", is_constructed=True),
            Entry("DriverFailed"),
        ],
    ),
    ReferencePage(
        "testing",
        "Testing workflows",
        "`Harness`, `simulate`, and the fixtures for pytest",
        [Entry("Harness", "h", is_constructed=True), Entry("simulate")],
    ),
    ReferencePage(
        "turn-driver",
        "Driving one run by hand",
        "`TurnDriver`",
        [Entry("TurnDriver", "driver", is_constructed=True)],
    ),
    ReferencePage(
        "testing-stores",
        "Testing stores",
        "`StoreContract` and its parts, `FaultyStore`, and clocks that stand still",
        [
            *map(Entry, ("StoreContract", "TransferContract", "DatabaseContract", "NamespaceContract")),
            Entry("FaultyStore", "store", is_constructed=True),
            Entry("VirtualClock", "clock", is_constructed=True),
            Entry("SettableClock", "settable_clock", is_constructed=True),
        ],
    ),
)


@cache
def public_names() -> dict[str, tuple[str, Any]]:
    """Every public name: the module that users import it from, and what it is."""
    return {name: (module.__name__, getattr(module, name)) for module in MODULES for name in module.__all__}


@cache
def declarations() -> dict[str, Declaration]:
    return {name: declaration_of(value) for name, (_, value) in public_names().items()}


@cache
def places() -> dict[str, tuple[str, str]]:
    """Where each name and each member has its entry: the file of the page, and the anchor."""
    entries = [(page.file, entry, declarations()[entry.name]) for page in PAGES for entry in page.entries]
    found = {
        known: (file, anchor(known)) for file, entry, declaration in entries for known in entry.headings(declaration)
    }
    # A namespace is described by its class.
    for _, entry, declaration in entries:
        if entry.is_list:
            found |= {f"{entry.receiver}.{one.name}": found[one.annotation] for one in entry.chosen(declaration)}
    return found


def anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return heading.replace(".", "").lower()


def links_from(file: str) -> dict[str, str]:
    """The addresses of all entries, as seen from a page.

    The functions of `holdfast.isolated` are common words, such as `cancel`, so only their own page and the index link
    them.
    """
    known = {name: place for name, place in places().items() if file in (place[0], "README") or not _is_word(name)}
    return {name: f"#{at}" if page == file else f"{page}.md#{at}" for name, (page, at) in known.items()}


def _is_word(name: str) -> bool:
    return name.islower() and public_names().get(name, ("",))[0] == holdfast.isolated.__name__


def contents() -> dict[str, str]:
    """The text of every file of the reference, by its name."""
    made = {f"{page.file}.md": "\n\n".join(_parts(page)) + "\n" for page in PAGES}
    return made | {"README.md": "\n\n".join(_index()) + "\n"} | schemas()


def _parts(page: ReferencePage) -> Iterator[str]:
    links = links_from(page.file)
    yield f"# {page.title}"
    yield NOTE
    if (introduction := introductions.of(page.file)) is not None:
        yield introduction
    if page.file == "errors":
        yield f"```text\n{_tree(holdfast.HoldfastError)}\n```"
    for entry in page.entries:
        home, _ = public_names()[entry.name]
        others = {name: link for name, link in links.items() if link != links[entry.name]}
        yield from filter(None, rendered(entry, declarations()[entry.name], home, others))


def _tree(kind: type) -> str:
    """The classes below a class, drawn as a tree."""
    lines = [kind.__name__]
    below = [one for one in _below(kind) if not one.__name__.startswith("_")]
    for place, one in enumerate(below):
        is_last = place == len(below) - 1
        first, *rest = _tree(one).splitlines()
        lines.append(f"{'└── ' if is_last else '├── '}{first}")
        lines += [f"{'    ' if is_last else '│   '}{line}" for line in rest]
    return "\n".join(lines)


def _below(kind: type) -> list[type]:
    """The subclasses of a class; in place of a private one, those below it."""
    found: dict[type, None] = {}
    subclasses: list[type] = kind.__subclasses__()
    for one in subclasses:
        if not one.__module__.startswith("holdfast.core."):
            continue
        found |= dict.fromkeys(_below(one)) if one.__name__.startswith("_") else {one: None}
    # A class with two bases stands below the one that is public.
    return [one for one in found if not any(other is not one and issubclass(one, other) for other in found)]


def _index() -> Iterator[str]:
    links = links_from("README")
    yield "# API reference"
    yield NOTE
    yield introductions.index(links)
    yield "## Pages"
    files = [f"[{about}]({file})" for file, (_, about) in SCHEMAS.items()]
    listed = [f"- [{page.title}]({page.file}.md): {page.about}" for page in PAGES]
    yield "\n".join([*listed, f"- JSON Schemas of {' and of '.join(files)}"])
    yield "## Names"
    yield "\n".join(_rows(links))


def _rows(links: Mapping[str, str]) -> Iterator[str]:
    yield "| name | import from | |"
    yield "| --- | --- | --- |"
    for name in sorted(public_names(), key=str.lower):
        home, _ = public_names()[name]
        about = linked(summary(declarations()[name].doc), {}).replace("|", "\\|")
        yield f"| [`{name}`]({links[name]}) | `{home}` | {about} |"
