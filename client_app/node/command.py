"""The node as a process: arguments, log lines, exit code."""

import argparse
import json
import logging
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from client_app.errors import SiloError
from client_app.home import SiloHome
from client_app.node.errors import NodeError
from client_app.node.service import Polling, run_node
from client_app.node.settings import load_connection
from privacy.errors import IdentityError

FAILED = 1

logger = logging.getLogger("fcfl.node")


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, where from, what."""

    def format(self, record: logging.LogRecord) -> str:
        """Format without exception texts: they may carry what must not leave the silo's own log."""
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "from": record.name,
            "event": record.getMessage(),
        }
        return json.dumps(line, ensure_ascii=False)


def log_to_stderr() -> None:
    """Send this package's log lines to standard error, and warnings of the rest."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logger.setLevel(logging.INFO)
    # Flower's own lines are no JSON, and name messages and objects.
    flower = logging.getLogger("flwr")
    flower.handlers.clear()
    flower.setLevel(logging.WARNING)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("fcfl silo run", description="Run the node of one silo until it is stopped.")
    parser.add_argument("home", type=Path, help="the silo's folder")
    parser.add_argument("--busy", type=_seconds, default=Polling.busy, help="seconds between two looks in a run")
    parser.add_argument("--idle", type=_seconds, default=Polling.idle, help="seconds between two looks otherwise")
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.05 <= value <= 60:
        raise argparse.ArgumentTypeError(f"{text}: expected seconds between 0.05 and 60")
    return value


def main(arguments: Sequence[str]) -> int:
    """Run until stopped; return the exit code."""
    given = _parser().parse_args(arguments)
    home = given.home.resolve()
    log_to_stderr()
    try:
        # A silo that could answer nothing does not announce itself.
        SiloHome.open(home)
        run_node(home, load_connection(home), Polling(given.busy, given.idle))
    except (NodeError, SiloError, IdentityError) as error:
        logger.error("%s", error)
        return FAILED
    except OSError as error:
        logger.error("%s: %s", error.filename or "a file", error.strerror or "cannot be used")
        return FAILED
    except Exception as error:  # noqa: BLE001 - the text may depend on data
        logger.error("%s; this is a defect of the software", _where(error))
        return FAILED
    return 0


def _where(error: BaseException) -> str:
    """Type and place of an error, without its text."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {place.name}, {Path(place.filename).name}:{place.lineno}"
