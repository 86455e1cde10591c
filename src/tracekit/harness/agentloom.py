"""Import of an agentloom recording as a run of the store."""

from __future__ import annotations

import os
from typing import Any

from ..agents import agentloom
from ..integration import Store
from .writer import TraceWriter

__all__ = ["import_agentloom"]


def import_agentloom(
    recording: agentloom.Recording | str | os.PathLike[str],
    target: str | os.PathLike[str] | Store | None = None,
    *,
    run_id: str | None = None,
) -> TraceWriter:
    """Write a recording of agentloom (or the file at a path) as a run, and return its writer, closed.

    Each key has a lane of its own, since the recording keeps no order between them; its turns are model calls there, in order. The
    rest of the file is the run's input, so ``tracekit export --to agentloom`` restores it. To answer a
    program from it, use ``tracekit.agents.agentloom``.
    """
    name = "agentloom"
    if not isinstance(recording, agentloom.Recording):
        name = os.path.splitext(os.path.basename(os.fspath(recording)))[0] or name
        recording = agentloom.load(recording)
    mark = {
        "version": recording.version,
        "lists": [key for key, answer in recording.answers.items() if isinstance(answer, list)],
        "others": recording.others,
        "events": recording.events,
    }
    with TraceWriter(target, run_id=run_id, name=name, input={agentloom.MARK: mark}) as writer:
        for key in recording.answers:
            lane = writer.lane(key)
            for number, turn in enumerate(recording.turns(key), 1):
                step = lane.begin("llm", _model(turn), {"key": key, "turn": number}, {"step_id": key})
                step.done(turn)
    return writer


def _model(turn: dict[str, Any]) -> str:
    model = turn.get("model")
    return model if isinstance(model, str) and model else "agentloom"
