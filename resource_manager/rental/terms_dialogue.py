"""What a rented machine may cost, asked for at the terminal where nobody said it. Nothing is rented here.

What is typed counts as said in the sentence: it is in the job, in the plan and in its command.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

from resource_manager.remote_settings import VAST, TermsNeededError
from resource_manager.rental.offers import Wish
from resource_manager.rental.offers_command import offers_for, open_api, wish_text
from resource_manager.rental.rental_api import RentalApi
from resource_manager.rental.rental_http import account_from
from tools_utilities.console import Console
from tools_utilities.errors import UsageError
from tools_utilities.process_environment import environment_now
from tools_utilities.settings import Settings

MOST_DIGITS = 6
"""Of a sum in dollars: nobody means more."""
_AMOUNT = re.compile(
    rf"\$?\s*(\d{{1,{MOST_DIGITS}}}(?:\.\d{{1,3}})?|\.\d{{1,3}})\s*(?:\$|usd|dollars?)?"
)
_RATE = re.compile(_AMOUNT.pattern + r"\s*(?:(?:an|per|/)\s*h(?:ou)?r?)?")
T = TypeVar("T")
Made = Callable[[Settings], T]


class Question(NamedTuple):
    """One figure that is asked for."""

    text: str
    answer: re.Pattern[str]
    example: str


QUESTIONS = {
    "max_price_hour": Question(
        "The most that the machine may cost an hour, in dollars?", _RATE, "2 or 1.50"
    ),
    "max_cost": Question(
        "The most that the whole run may cost, in dollars? (A time instead: say `for 3 hours`.)",
        _AMOUNT,
        "15",
    ),
}


class Settled(NamedTuple):
    """What was made, the settings with what was typed, and the words that say the same."""

    made: Any
    settings: Settings
    words: str


def open_account() -> RentalApi:
    """Return the provider of the account that the environment names."""
    return open_api(account_from(environment_now()))


def settle_terms(
    make: Made[T],
    settings: Settings,
    console: Console,
    opened: Callable[[], RentalApi] = open_account,
) -> Settled:
    """Return what `make` makes of the settings, after asking for the figures that it misses.

    Raises:
        TermsNeededError: nobody can be asked.
        UsageError: no answer.
        QuarkError: as of `make`; or nothing that fits is for rent, whatever it costs.
    """
    words, told = "", False
    while True:
        try:
            return Settled(make(settings), settings, words)
        except TermsNeededError as error:
            if not console.can_ask:
                raise
            name = str(error.detail["setting"])
            console.note(str(error))
        if not told and settings.value("where") == VAST:
            console.note(_offered(settings, console, opened))
            told = True
        amount = _asked(QUESTIONS[name], console)
        settings = msgspec.structs.replace(
            settings,
            values={**settings.values, name: amount},
            sources={**settings.sources, name: "sentence"},
        )
        words += f" --override {name}={f'{amount:.3f}'.rstrip('0').rstrip('.')}"


def _offered(settings: Settings, console: Console, opened: Callable[[], RentalApi]) -> str:
    """Return what there is to be rented, for who must say what it may cost."""
    wish = Wish(
        gpu_type=settings.value("gpu_type"),
        gpus=settings.value("gpus") or 1,
        spot=bool(settings.value("spot")),
        disk_gb=settings.value("rental_disk_gb"),
    )
    api = opened()
    with console.working(f"asking {api.host}"):
        found = offers_for(api, wish).offers
    return (
        f"{len(found)} offers fit now ({wish_text(wish)}): ${found[0].price_hour:.3f} an hour is the"
        f" cheapest, ${found[-1].price_hour:.3f} the dearest"
    )


def _asked(question: Question, console: Console) -> float:
    """Return the sum that somebody types.

    Raises:
        UsageError: nothing was typed.
    """
    while True:
        typed = console.ask(question.text)
        if not typed:
            raise UsageError("no answer: nothing was rented")
        found = question.answer.fullmatch(typed.lower())
        if found is not None and float(found[1]) > 0:
            return float(found[1])
        console.note(f"Please type dollars, such as {question.example}; nothing at all ends it.")
