"""The registry: workflows, tasks and schedules by name.

A `Holdfast` object contains one. A larger application declares more of them in its modules and includes them. Nothing
here is global, so nothing depends on the order of imports.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.errors import InvalidRequest, UnknownWorkflow
from holdfast.core.suggestion import nearest
from holdfast.runner.declared_schedules import DeclaredSchedules
from holdfast.runner.decorators import StepDecorator, TaskDecorator, WorkflowDecorator
from holdfast.runner.definition import Definition
from holdfast.runner.pipeline import PipelineDeclaration


class Registry(DeclaredSchedules):
    """A collection of workflows, tasks, steps and schedules for a module, which an application adds with `hf.include`.

    Its decorators are those of `Holdfast`. Nothing depends on the order of imports.
    """

    def __init__(self) -> None:
        super().__init__()
        self._definitions: dict[str, Definition] = {}
        self._included: list[Registry] = []

    @property
    def workflow(self) -> WorkflowDecorator:
        """Register a workflow: `@registry.workflow`, or with options `@registry.workflow("shop.checkout.v1")`."""
        return WorkflowDecorator(self._add)

    @property
    def task(self) -> TaskDecorator:
        """Register a task: `@registry.task`, or with options `@registry.task("mail.send.v1", timeout=30)`."""
        return TaskDecorator(self._add)

    @property
    def pipeline(self) -> PipelineDeclaration:
        """Register a pipeline: `registry.pipeline("shop.signup.v1", create_account, send_welcome)`."""
        return PipelineDeclaration(self._add)

    @property
    def step(self) -> StepDecorator:
        """Make a function a step: `@registry.step`, or with options `@registry.step(timeout=30)`."""
        return StepDecorator()

    def include(self, registry: Registry) -> None:
        """Add the workflows, tasks and schedules of another registry, and those it gets later."""
        if not isinstance(registry, Registry):
            raise InvalidRequest(
                f"include({registry!r:.80}): expected a Registry; declare shared workflows on a Registry of their own "
                "and include it in each Holdfast"
            )
        for type in registry.types():
            if self.get(type) is not None:
                raise InvalidRequest(f"type {type!r} is already registered here; a type has one definition")
        self.take_in(registry)
        self._included.append(registry)

    def get(self, type: str) -> Definition | None:
        """Return the definition of a type, or None if it is not registered here."""
        found = self._definitions.get(type)
        if found is None:
            for registry in self._included:
                if (found := registry.get(type)) is not None:
                    break
        return found

    def definition(self, workflow: object) -> Definition:
        """Return the definition of a type or of a decorated function. Raises `UnknownWorkflow` if there is none."""
        if isinstance(workflow, Definition):
            return workflow
        found = self.get(workflow) if isinstance(workflow, str) else None
        if found is None:
            known = sorted(self.types())
            near = nearest(workflow, known) if isinstance(workflow, str) else None
            meant = f"; did you mean {near!r}?" if near else ""
            raise UnknownWorkflow(
                f"{workflow!r} is not a registered workflow or task{meant} "
                f"(known here: {', '.join(known[:10]) or 'none'}); decorate the function "
                "with @hf.workflow or @hf.task, or include the registry that has it"
            )
        return found

    def count(self) -> int:
        """Return the number of workflows and tasks. It only grows."""
        return len(self._definitions) + sum(registry.count() for registry in self._included)

    def types(self) -> Iterator[str]:
        """Yield the names of all workflows and tasks."""
        yield from self._definitions
        for registry in self._included:
            yield from registry.types()

    def _add(self, definition: Definition) -> None:
        if self.get(definition.type) is not None:
            raise InvalidRequest(f"type {definition.type!r} is already registered; a type has one definition")
        self._definitions[definition.type] = definition
