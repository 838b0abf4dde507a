"""YAML of any size, depth and number of aliases is read or refused, and never expanded."""

import pytest

from jobs.config.bounded_yaml import MAX_BYTES, MAX_DEPTH, MAX_VALUES, YamlError, load_yaml
from jobs.config.overrides import read_recipe


def bomb(levels: int, width: int = 10) -> str:
    """Lists of aliases of lists of aliases: `width ** levels` values."""
    lines = ["a0: &a0 [" + ", ".join(["x"] * width) + "]"]
    for at in range(1, levels):
        lines.append(f"a{at}: &a{at} [" + ", ".join([f"*a{at - 1}"] * width) + "]")
    return "\n".join(lines)


REFUSED = {
    "deep lists": ("[" * 5000 + "]" * 5000, "is nested deeper than"),
    "deep mappings": ("".join(f"{' ' * at}a:\n" for at in range(200)), "is nested deeper than"),
    "aliases of aliases": (bomb(9), "has more than the maximum of"),
    "a list inside itself": ("a: &a [*a]", "nested deeper than"),
    "a mapping inside itself": ("a: &a {b: 1, c: [*a]}", "nested deeper than"),
    "deep aliases": (
        "a0: &a0 [x]\n" + "\n".join(f"a{at}: &a{at} [*a{at - 1}]" for at in range(1, 100)),
        "is nested deeper than",
    ),
    "a key twice": ("a: 1\nb: {c: 2}\na: 3", "repeats the key 'a' on line 3"),
    "a key twice below": ("a: [{b: 1, c: b, b: 2}]", "repeats the key 'b' on line 1"),
    "many values": ("[" + "1," * (MAX_VALUES + 1) + "]", "has more than the maximum of"),
    "many bytes": ("#" * (MAX_BYTES + 1), "is larger than"),
    "no text": (b"\xff\xfe\x00", "is not UTF-8"),
    "no YAML": ("a: [", "is not YAML"),
    "a tab": ("a:\n\tb: 1", "indent with spaces, not with tabs"),
    "an endless number": ("a: " + "9" * 5000, "is not YAML"),
    "no day": ("a: 2025-13-99", "is not YAML"),
    "an object": ("a: !!python/object/apply:os.system [ls]", "is not YAML"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_too_much_is_refused_in_one_line(what):
    text, reason = REFUSED[what]
    with pytest.raises(YamlError, match=reason) as caught:
        load_yaml(text)
    assert "\n" not in str(caught.value)


def test_what_people_write_is_read():
    deep = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    assert load_yaml(f"a: &a [1, 2.5, yes, null, x]\nb: *a\nc: {deep}")["b"] == [
        1,
        2.5,
        True,
        None,
        "x",
    ]


def test_a_recipe_may_come_through_a_pipe(tmp_path):
    import os
    import threading

    pipe = tmp_path / "recipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text("model: {name: tiny}"))
    writer.start()
    assert read_recipe(pipe) == {"model": {"name": "tiny"}}
    writer.join()


def test_equal_keys_of_different_mappings_and_merged_ones_are_read():
    text = "a: &a {x: 1, y: x}\nb: &b {x: 2}\nc: {<<: *a, x: 3}\nd: [{x: x}, {x: x}]"
    assert load_yaml(text)["c"] == {"x": 3, "y": "x"}
