"""One message in a process of its own: the child's side. Importing this module imports neither Flower nor torch."""

import multiprocessing
import os
import threading
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flwr.app import Message

# Imported once in the process that is forked for every message.
WARM = ("client_app.app", "client_app.local_training", "client_app.evaluation", "client_app.silo_level_training")
FAILED = 70


def nothing() -> None:
    """Show that a process can be forked, once all of `WARM` is imported."""


def answer(replies: Connection, message: "Message", node_id: int, silo_home: str) -> None:
    """Answer ``message`` with the installed ClientApp and send the reply through ``replies``.

    The code that the coordinator ships with a run is never fetched, and its settings are not passed on.
    """
    _end_with_node()
    try:
        replies.send(_answer(message, node_id, silo_home))
        replies.close()
    except Exception:  # noqa: BLE001 - a text that may depend on data must not get into the node's log
        raise SystemExit(FAILED) from None


def _answer(message: "Message", node_id: int, silo_home: str) -> "Message":
    import torch
    from flwr.app import Context, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from client_app.app import app

    # A second thread of torch would wait for the first one's cores.
    torch.set_num_threads(1)
    run_id = message.metadata.run_id
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, node_id, 0
    context = Context(
        run_id=run_id, node_id=node_id, node_config={"silo-home": silo_home}, state=RecordDict(), run_config={}
    )
    return app(message=message, context=context)


def _end_with_node() -> None:
    """End this process when the node's ends or lets go of it; a killed node's child would hold the silo's folder."""
    node = multiprocessing.parent_process()
    if node is None:
        return
    sentinel = node.sentinel

    def watch() -> None:
        wait([sentinel])
        os._exit(FAILED)

    threading.Thread(target=watch, daemon=True).start()
