"""Conversation: questions after each other about one video, each of which knows those before."""

from __future__ import annotations

from collections.abc import Callable

from trainer.asking.answering import Answer, Prefix, answer
from trainer.asking.viewing import Watched
from trainer.data.annotation import Message
from trainer.model.model_folder import AskableModel


class Conversation:
    """A model, what it watches, and what was said."""

    def __init__(
        self, model: AskableModel, *, watched: Watched | None, keeps_prefix: bool = True
    ) -> None:
        """`watched` is None for text only. `keeps_prefix`: what was read is not read again."""
        self.messages: list[Message] = []
        self._model, self._watched = model, watched
        self._prefix = Prefix() if keeps_prefix else None

    def ask(
        self,
        question: str,
        *,
        max_new_tokens: int,
        say: Callable[[str], None] | None = None,
    ) -> Answer:
        """The answer to one more question; `say` as of `answer`.

        Errors as of `answer`, after which nothing was said.
        """
        messages = [*self.messages, Message.of("user", question)]
        found = answer(
            self._model,
            messages,
            watched=self._watched,
            max_new_tokens=max_new_tokens,
            prefix=self._prefix,
            say=say,
        )
        self.messages = [*messages, Message.of("assistant", found.text)]
        return found
