from pathlib import Path
from typing import get_args

from zmqps.runs.network_reference import network_reference
from zmqps.simulator import faults

PAGE = Path(__file__).parents[3] / "docs" / "network-file.md"


def test_the_page_is_that_of_the_settings():
    hint = "renew it: python -m zmqps.runs.network_reference > docs/network-file.md"
    assert PAGE.read_text(encoding="utf-8") == network_reference(), hint


def test_every_fault_is_on_it():
    page = network_reference()
    for kind in (*get_args(faults.OnProcesses), *get_args(faults.OnConnections)):
        assert f"`do: {get_args(kind.model_fields['do'].annotation)[0]}`" in page
