from pathlib import Path

from zmqps.runs.consensus_reference import consensus_reference

PAGE = Path(__file__).parents[3] / "docs" / "consensus-file.md"


def test_the_page_is_that_of_the_settings():
    hint = "renew it: python -m zmqps.runs.consensus_reference > docs/consensus-file.md"
    assert PAGE.read_text(encoding="utf-8") == consensus_reference(), hint


def test_every_graph_is_on_it_and_each_table_once():
    page = consensus_reference()
    for kind in ("ring", "torus", "hypercube", "small_world", "graphml", "gossip", "failing_links"):
        assert f"`{kind}`" in page
    headings = [line for line in page.splitlines() if line.startswith("## ") and "kind:" in line]
    assert len(headings) == len(set(headings)) > 20
