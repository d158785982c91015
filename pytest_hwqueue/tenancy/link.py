"""A tenant's line to the session that started it."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING

from pytest_hwqueue.processes.channel import Channel, Message

if TYPE_CHECKING:
    from pytest_hwqueue.schedulers.priority_probe import ProbeClient


class Link:
    """One tenant's line to the parent."""

    def __init__(self, name: str, channel: Channel) -> None:
        self.commands: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.stage = "start"
        # What was served before a failure, which the record of the failure keeps.
        self.served: Message | None = None
        self._name = name
        self._channel = channel

    def enter(self, stage: str) -> None:
        """Report the stage that the tenant has entered."""
        self.stage = stage
        self.send("stage", stage=stage)

    def send(self, kind: str, **content: object) -> None:
        """Send a message in the tenant's name."""
        self._channel.send(kind, tenant=self._name, **content)

    def wait_for(self, kind: str) -> Message:
        """Wait for a command."""
        message = self.commands.get()
        assert message["kind"] == kind, message
        return message

    def wait_for_start(self, client: ProbeClient) -> Message:
        """Wait for the window's start; take part in the priority probe until then."""
        from pytest_hwqueue.schedulers.priority_probe import answer

        while (message := self.commands.get())["kind"] == "probe":
            try:
                answered = answer(client, message["step"], message["argument"])
            # Such as too little memory: then the effect is not proven, and tenants still run.
            except RuntimeError as error:
                self.send("probed", failed=f"{type(error).__name__}: {error}")
            else:
                self.send("probed", answer=answered, failed="")
        assert message["kind"] == "start", message
        return message
