"""One message in a process of its own: the child's side. Importing this module imports neither Flower nor torch."""

from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flwr.app import Message

# Imported once in the process that is forked for every message.
WARM = ("client_app.app", "client_app.local_training", "client_app.evaluation", "client_app.silo_level_training")


def answer(replies: Connection, message: "Message", node_id: int, silo_home: str) -> None:
    """Answer ``message`` with the installed ClientApp and send the reply through ``replies``."""
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
    replies.send(app(message=message, context=context))
    replies.close()
