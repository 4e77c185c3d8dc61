"""Flower ClientApp of a silo: routes messages to `client_app.silo.Silo` and lets nothing else out.

A refusal is one of the codes of `client_app.errors`. Exception texts, which Flower would send to the server, stay in
the silo's log.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client_app.contribution import Sample
from client_app.errors import Code, ControlLost, Declined, SiloError
from client_app.home import Reply, SiloHome
from client_app.silo import Silo
from data_prep.shards import open_shard
from privacy.errors import IdentityError, LedgerError, PrivacyError
from secagg.arrays import Arrays, dump, load
from secagg.errors import SecAggError

BODY, ARRAYS = "body", "arrays"
logger = logging.getLogger("fcfl.silo")

app = ClientApp()


def home_of(context: Context) -> Path:
    """Folder of the silo behind this node.

    A deployed node names it (``--node-config "silo-home='/silo'"``); the simulation engine cannot, so there the run
    configuration names the folder of all silos and the partition id picks one.

    Raises
    ------
    SiloError
        If neither is given.
    """
    if home := context.node_config.get("silo-home"):
        return Path(str(home))
    if root := context.run_config.get("simulation-root"):
        return Path(str(root)) / f"silo-{int(context.node_config['partition-id']):02d}"
    raise SiloError("no silo folder: start the node with --node-config \"silo-home='/path/of/the/silo'\"")


def open_silo(root: Path) -> Silo:
    """Open a silo's folder and its samples."""
    home = SiloHome.open(root)
    return Silo(home, Sample(open_shard(home.settings.data)), f"fcfl {version('fcfl')}")


def answer(message: Message, context: Context, stage: Callable[[Silo, bytes, Arrays], Reply]) -> Message:
    """Run one stage and pack its reply, or a code; the reason stays in the silo's log."""
    try:
        root = home_of(context)
        with silo_log(root):
            return _logged(root, message, stage)
    except Exception:  # noqa: BLE001 - no text that depends on data may reach Flower, which sends it on
        return _packed({"code": int(Code.FAILED)}, {}, message)


def _logged(root: Path, message: Message, stage: Callable[[Silo, bytes, Arrays], Reply]) -> Message:
    try:
        silo = open_silo(root)
        with silo.home.alone():
            reply = stage(silo, *_unpack(message))
    except (SiloError, IdentityError, LedgerError) as reason:
        logger.error("stopped: %s", reason)
        return _packed({"code": int(Code.FAILED)}, {}, message)
    except (Declined, SecAggError, PrivacyError) as reason:
        logger.warning("declined: %s", reason)
        return _packed({"code": int(Code.DECLINED)}, {}, message)
    except ControlLost as reason:
        logger.warning("%s", reason)
        return _packed({"code": int(Code.CONTROL_LOST)}, {}, message)
    except Exception:
        logger.exception("failed")
        return _packed({"code": int(Code.FAILED)}, {}, message)
    return _packed({"data": reply.body}, reply.arrays, message)


@contextmanager
def silo_log(root: Path) -> Iterator[None]:
    """Send the log lines of one message to ``silo.log`` in the silo's folder, and nowhere else."""
    (root / "silo.log").touch(mode=0o600)
    handler = logging.FileHandler(root / "silo.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.propagate = False
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


def _unpack(message: Message) -> tuple[bytes, Arrays]:
    body = message.content[BODY]
    data = body["data"] if isinstance(body, ConfigRecord) else None
    if not isinstance(data, bytes):
        raise Declined("the request has no body; the coordinator speaks another protocol")
    record = message.content.get(ARRAYS)
    if record is None:
        return data, {}
    encoded = record.get("data")
    if not isinstance(encoded, bytes):
        raise Declined("the request's arrays are no byte string; the coordinator speaks another protocol")
    return data, load(encoded)


def _packed(fields: dict[str, Any], arrays: Arrays, message: Message) -> Message:
    content = RecordDict({BODY: ConfigRecord(fields)})
    if arrays:
        content[ARRAYS] = ConfigRecord({"data": dump(arrays)})
    return Message(content, reply_to=message)


@app.query("enrol")
def enrol(message: Message, context: Context) -> Message:
    """Agree to a run's terms."""
    return answer(message, context, lambda silo, body, _: silo.enrol(body))


@app.query("reveal")
def reveal(message: Message, context: Context) -> Message:
    """Reveal the silo's part in the order of a regular graph."""
    return answer(message, context, lambda silo, body, _: silo.reveal(body))


@app.query("join")
def join(message: Message, context: Context) -> Message:
    """Give the bundle of an epoch."""
    return answer(message, context, lambda silo, body, _: silo.join(body))


@app.train()
def contribute(message: Message, context: Context) -> Message:
    """Train and send a masked vector."""
    return answer(message, context, lambda silo, body, arrays: silo.contribute(body, arrays))


@app.query("unmask")
def unmask(message: Message, context: Context) -> Message:
    """Give the shares that unmask the sum."""
    return answer(message, context, lambda silo, body, _: silo.unmask(body))


@app.query("close")
def close(message: Message, context: Context) -> Message:
    """End a run."""
    return answer(message, context, lambda silo, body, _: silo.close(body))
