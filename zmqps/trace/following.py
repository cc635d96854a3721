"""What `follow` shows: rates and verdicts of a run that goes on."""

from typing import Any, Final

from zmqps.trace.store import Store
from zmqps.trace.verdicts import KINDS, Verdict, counts, judge, listed

NEW_MAX: Final = 5
"""New bad verdicts that are shown at once."""


class Following:
    """Looks at a store again and again; each `look` is compared with the one before."""

    def __init__(self, store: Store, *, late_s: float, torn: int | None):
        self._store = store
        self._late_s, self._torn = late_s, torn
        self._before: dict[str, float] = {}
        self._told: set[tuple[Any, ...]] = set()

    def look(self) -> dict[str, Any]:
        """Return what there is now, and what is new."""
        store = self._store
        judge(store, late_s=self._late_s, torn=self._torn)
        now = store.rows("""
            SELECT max(wall(boot, last_at)) AS seen, sum(records)::BIGINT AS records,
              coalesce(bool_and(ended), false) AS ended, count(*) AS processes FROM processes
        """)[0]
        work = store.rows("""
            SELECT (SELECT count(*) FROM step_done) AS steps,
              (SELECT coalesce(sum(images), 0)::BIGINT FROM step_done) AS images,
              (SELECT count(*) FROM push_done) AS pushes,
              (SELECT avg(loss) FROM (SELECT loss FROM step_done ORDER BY "at" DESC LIMIT 100))
                AS loss,
              (SELECT avg(staleness_max) FROM
                (SELECT staleness_max FROM push_done ORDER BY "at" DESC LIMIT 100)) AS staleness
        """)[0]
        state = {**now, **work, "verdicts": counts(store), "new": self._new()}
        state |= self._rates(state)
        return state

    def _rates(self, state: dict[str, Any]) -> dict[str, Any]:
        seconds = (state["seen"] or 0) - self._before.get("seen", 0)
        rates = {
            f"{name}_per_s": (state[name] - self._before[name]) / seconds
            if self._before and seconds > 0
            else None
            for name in ("steps", "images", "pushes")
        }
        self._before = {name: state[name] or 0 for name in ("seen", "steps", "images", "pushes")}
        return rates

    def _new(self) -> list[Verdict]:
        bad = listed(self._store, grades=("bad",), limit=1000)
        new = [v for v in bad if (v.kind, v.sender, v.sequence, v.job) not in self._told]
        self._told |= {(v.kind, v.sender, v.sequence, v.job) for v in new}
        return new[:NEW_MAX]

    @staticmethod
    def head() -> str:
        """Return the titles of the columns."""
        titles = ("lines", "steps", "steps/s", "pushes/s", "loss", "staleness")
        return " ".join(f"{title:>10}" for title in titles) + "  verdicts"

    @staticmethod
    def line(state: dict[str, Any]) -> str:
        """Return a state as a line."""
        cells = [f"{state['records'] or 0:>10,}", f"{state['steps']:>10,}"]
        for name, form in (
            ("steps_per_s", ".1f"), ("pushes_per_s", ".1f"), ("loss", ".4f"), ("staleness", ".2f"),
        ):  # fmt: skip
            value = state[name]
            cells.append(f"{'-' if value is None else format(value, form):>10}")
        found = [
            f"{kind} {sum(by_grade.values())}"
            + (f" ({by_grade['bad']} bad)" * bool(by_grade["bad"]))
            for kind, by_grade in ((kind, state["verdicts"][kind]) for kind in KINDS)
            if any(by_grade.values())
        ]
        ended = "  ended" if state["ended"] else ""
        return f"{' '.join(cells)}  {', '.join(found) or 'none'}{ended}"
