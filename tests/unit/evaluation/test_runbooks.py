import subprocess

import pytest

from chairlift.evaluation.runbooks import Command, read_runbooks, script

PAGE = """# Operations

### Not a runbook

**Symptom.** Of another section.

## Runbooks

Words about all of them.

### ChairliftHubMissing

**Symptom.** No figures
of the cluster.

**First look.** Ask a router:

```sh
curl -s $URL/metrics/cluster   # shows 503
```

**Action.** Wait.

```sh
# nothing to do
NAME=hub
echo "a $NAME is \\
back"   # shows ^a hub
```

```yaml
not: "a command   # shows this"
```

**Owner.** telemetry; it is called.

### Rung 2: smaller_steps

**Symptom.** `### not a heading` in a line.

```text
### nor this
```

**Owner.** serving

## Later

### Neither
"""


def test_runbooks_are_the_sections_under_their_heading():
    found = read_runbooks(PAGE)
    assert list(found) == ["ChairliftHubMissing", "Rung 2: smaller_steps"]
    hub, rung = found.values()
    assert list(hub.parts) == ["Symptom", "First look", "Action", "Owner"]
    assert list(rung.parts) == ["Symptom", "Owner"]
    assert (hub.owner, rung.owner) == ("telemetry", "serving")
    assert (hub.anchor, rung.anchor) == ("chairlifthubmissing", "rung-2-smaller_steps")
    assert PAGE.splitlines()[hub.line - 1] == "### ChairliftHubMissing"
    assert hub.parts["Symptom"] == "No figures\nof the cluster."


def test_commands_are_the_lines_of_blocks_with_what_they_show():
    hub = read_runbooks(PAGE)["ChairliftHubMissing"]
    assert hub.commands("First look") == (Command("curl -s $URL/metrics/cluster", "503"),)
    assert hub.commands("Action") == (
        Command("NAME=hub", None),
        Command('echo "a $NAME is \\\nback"', "^a hub"),
    )
    assert hub.commands("Symptom") == ()


@pytest.mark.parametrize("page", ["", "# A page\n\n### Heading\n", "## Runbooks\n"])
def test_a_page_without_runbooks_has_none(page):
    assert read_runbooks(page) == {}


def run(*commands: Command, deadline_s: int = 5) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-eu", "-c", script(commands, {"WORD": "a.c"})],
        env={"PATH": "/usr/bin:/bin", "DEADLINE_S": str(deadline_s)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_block_is_one_shell_that_stops_at_the_first_failure():
    done = run(Command("NAME=x", None), Command("echo $NAME", "^x$"), Command("echo on", None))
    assert (done.returncode, done.stdout) == (0, "x\non\n")
    failed = run(Command("false", None), Command("echo on", None))
    assert (failed.returncode, failed.stdout) == (1, "")


def test_a_command_that_shows_something_is_repeated_until_it_does(tmp_path):
    counting = Command(f"echo x >> {tmp_path}/n; wc -l < {tmp_path}/n", "^ *3")
    assert run(counting).stdout.strip() == "3"
    never = run(Command("echo 'it is off'; false", "it is on"), deadline_s=0)
    assert never.returncode == 1
    assert "never showed it is on" in never.stderr
    assert "it is off" in never.stderr


def test_patterns_take_values_and_keep_their_own_dollars():
    assert run(Command("echo a.c", "^$WORD$")).returncode == 0
    assert run(Command("echo abc", "^$WORD$"), deadline_s=0).returncode == 1
    assert run(Command("echo '$OTHER'", r"\$OTHER$"), deadline_s=0).returncode == 0
