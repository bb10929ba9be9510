"""Structured logs: JSON lines for machines, or coloured lines for people, on stderr."""

import logging
import sys

import structlog

from core.config.schema import LogSection


def configure_logs(section: LogSection, *, process: str) -> None:
    """Send every structlog event to stderr with time, level and the name of the process."""
    level = logging.getLevelNamesMapping()[section.level.upper()]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if section.format == "json" else structlog.dev.ConsoleRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(process=process)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
