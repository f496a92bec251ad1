"""How long a session that was just opened is left alone by an agent that names its files by the minute."""

from datetime import datetime

import pytest

from kandev.lifecycle.minute import MARGIN_S, seconds_to_wait


@pytest.mark.parametrize(
    ("opened_at", "at", "seconds"),
    [
        ("", "2026-11-29T18:45:11+00:00", 0),
        ("2026-11-29T18:45:00.000Z", "2026-11-29T18:45:00+00:00", 60),
        ("2026-11-29T18:45:11.123Z", "2026-11-29T18:45:59.500+00:00", 0.5),
        ("2026-11-29T18:45:59.999Z", "2026-11-29T18:46:00+00:00", 0),
        ("2026-11-29T18:44:59.999Z", "2026-11-29T18:45:00+00:00", 0),
        ("2026-11-29T18:45:11.123Z", "2026-11-29T19:45:20+00:00", 0),
        ("2026-11-28T18:45:11.123Z", "2026-11-29T18:45:20+00:00", 0),
        ("2026-11-29T18:45:11.123Z", "2026-11-29T20:15:50+01:30", 10),
        ("2026-11-29T18:46:30.000Z", "2026-11-29T18:45:20+00:00", 0),
    ],
)
def test_only_the_minute_in_which_it_was_opened_is_waited_for(opened_at: str, at: str, seconds: float) -> None:
    """To the end of that minute and a little more; in whatever zone the clock is read."""
    assert seconds_to_wait(opened_at, datetime.fromisoformat(at)) == (seconds + MARGIN_S if seconds else 0)
