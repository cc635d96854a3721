import pytest
from pydantic import ValidationError

from zmqps.protocol.settings import ORDER, STRICT, ClusterSettings


def test_defaults_are_in_order() -> None:
    cluster = ClusterSettings()
    for small, large in ORDER:
        assert getattr(cluster, small) <= getattr(cluster, large)


@pytest.mark.parametrize(("small", "large"), ORDER)
def test_each_pair_out_of_order_is_refused_at_the_larger(small: str, large: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ClusterSettings(**{small: 1 << 31, large: 1 << 30})
    messages = {error["loc"]: error["msg"] for error in caught.value.errors()}
    assert f"{small} ({1 << 31})" in messages[(large,)]


@pytest.mark.parametrize(("small", "large"), ORDER)
def test_an_equal_pair_is_refused_only_where_the_order_is_strict(small: str, large: str) -> None:
    values = {name: 1 << 25 for pair in ORDER for name in pair if not name.endswith("_ms")}
    values |= {small: 1 << 25, large: 1 << 25}
    if small in STRICT:
        with pytest.raises(ValidationError, match=f"must be above {small}"):
            ClusterSettings(**values)
    else:
        ClusterSettings(**values)


def test_a_smaller_bound_shows_against_a_default() -> None:
    with pytest.raises(ValidationError, match=r"must be above heartbeat_ms \(5000\)"):
        ClusterSettings(heartbeat_ms=5000)


def test_every_setting_says_what_it_is() -> None:
    assert all(field.description for field in ClusterSettings.model_fields.values())


def test_unit_is_the_last_word() -> None:
    units = {"bytes", "ms", "max"}
    for name in ClusterSettings.model_fields:
        if "bytes" in name or "_ms" in name:
            assert name.split("_")[-1] in units
