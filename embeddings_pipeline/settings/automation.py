"""When a corpus's job starts by itself: a corpus YAML's `schedule` and `sensor`."""

import re
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, field_validator

from embeddings_pipeline.settings.spec import Spec

_NICKNAMES = ("@yearly", "@monthly", "@weekly", "@daily", "@hourly")


class ScheduleSpec(Spec):
    """At which times new and changed deliveries are embedded; `cron` has five fields, in that time zone."""

    cron: str
    timezone: str = "UTC"

    @field_validator("cron")
    @classmethod
    def _cron_has_five_fields(cls, value: str) -> str:
        if value not in _NICKNAMES and not re.fullmatch(r"\s*(?:[\w*/,#?-]+\s+){4}[\w*/,#?-]+\s*", value):
            raise ValueError(
                f"'{value}' is no cron expression of five fields; write minute, hour, day, month and weekday, such as "
                "'0 3 * * *' for every day at 03:00"
            )
        return value

    @field_validator("timezone")
    @classmethod
    def _timezone_is_known(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"'{value}' is no time zone; use a name such as UTC or Europe/Berlin") from None
        return value


class SensorSpec(Spec):
    """That new and changed deliveries are embedded once no file of theirs has changed for `settle_seconds`."""

    settle_seconds: float = Field(default=60.0, ge=0)
