"""The node as a process: arguments, log lines, exit code."""

import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from client_app.errors import SiloError
from client_app.home import SiloHome
from client_app.node.fleet import NodeError
from client_app.node.service import run_node
from client_app.node.settings import load_node_settings
from privacy.errors import IdentityError

FAILED, USAGE = 1, 2

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


def main(arguments: Sequence[str]) -> int:
    """Run until stopped; return the exit code."""
    if len(arguments) != 1:
        print("usage: python -m client_app.node HOME", file=sys.stderr)
        return USAGE
    home = Path(arguments[0]).resolve()
    log_to_stderr()
    try:
        # A silo that could answer nothing does not announce itself.
        SiloHome.open(home)
        settings = load_node_settings(home)
        run_node(home, settings.connection, settings.polling)
    except (NodeError, SiloError, IdentityError) as error:
        logger.error("%s", error)
        return FAILED
    except OSError as error:
        logger.error("%s: %s", error.filename or "a file", error.strerror or "cannot be used")
        return FAILED
    return 0
