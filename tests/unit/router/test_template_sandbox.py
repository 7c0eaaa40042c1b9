"""Templates of hostile model files: refused within bounds, where ordinary ones just pass."""

import pytest
from jinja2.exceptions import SecurityError

from chairlift.router.template_sandbox import MAX_STEPS, BoundedEnvironment

ENDLESS = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"
DOUBLING = "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = X %}{% endfor %}"


def rendered(source: str, **variables: object) -> str:
    environment = BoundedEnvironment(["jinja2.ext.loopcontrols"])
    return environment.rendered(environment.from_string(source), variables)


@pytest.mark.parametrize(
    "source",
    [
        ENDLESS,
        "{% for a in range(9999) %}{{ range(9999) | map('string') | join }}{% endfor %}",
        "{% for a in [1] recursive %}{{ loop([1] * 9999) }}{% endfor %}",
        "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
        "{% for i in range(10000000) %}{% endfor %}",
        DOUBLING.replace("X", "n.x + n.x"),
        DOUBLING.replace("X", "n.x ~ n.x"),
        DOUBLING.replace("X", "n.x * 2"),
        DOUBLING.replace("X", "[n.x, n.x] | join"),
        DOUBLING.replace("X", "''.join([n.x, n.x])"),
        DOUBLING.replace("X", "n.x.replace('a', n.x)"),
        DOUBLING.replace("X", "n.x | replace('b', n.x)"),
        DOUBLING.replace("X", "'%s%s' % (n.x, n.x)"),
        DOUBLING.replace("X", "'{}{}'.format(n.x, n.x)"),
        DOUBLING.replace("X", "'%s%s' | format(n.x, n.x)"),
        DOUBLING.replace("X", "[n.x, n.x] | tojson"),
        DOUBLING.replace("X", "[n.x, n.x] | string"),
        DOUBLING.replace("X", "[n.x, n.x]") + "{{ n.x }}",
        "{% macro m() %}{% for i in range(9999) %}{{ x }}{% endfor %}{% endmacro %}{{ m() }}",
        "{% set y %}{% for i in range(9999) %}{{ x }}{% endfor %}{% endset %}{{ y }}",
        "{% for i in range(9999) %}{{ x }}{% endfor %}",
        "{% for i in range(9999) %}{% set z = x[1:] == y %}{% endfor %}",
        "{{ 'a' * 1000000000 }}",
        "{{ ['a'] * 1000000000 }}",
        "{{ 9 ** 99999999 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 1000000000) }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ 'a'.zfill(width=1000000000) if false else 'a'.zfill(1000000000) }}",
        "{{ x | indent(1000, true) if false else ('\n' * 99999) | indent(1000, true) }}",
        "{{ 'a'.encode().ljust(1000000000) }}",
        "{{ 'a'.translate({97: x}) }}",
        "{{ (1).to_bytes(1000000000, 'big') }}",
        "{{ [] | batch(1000000000, 1) | list }}",
        "{{ [1] | batch(1000000000, 1) | list }}",
        "{{ 'a' | tojson(indent=1000000000) }}",
    ],
)
def test_what_would_never_end_or_fill_the_memory_is_refused(source):
    with pytest.raises((SecurityError, RecursionError)):
        rendered(source, x="x" * 10**6, y="x" * 10**6)


def test_each_rendering_has_steps_of_its_own():
    environment = BoundedEnvironment([])
    template = environment.from_string("{% for i in range(9000) %}{{ i }}{% endfor %}")
    texts = {environment.rendered(template, {}) for _ in range(MAX_STEPS // 9000 // 2)}
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "{% for x in m %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}",
            "1/2False 2/2True ",
        ),
        ("{% for x in m if x != 'a' %}{{ loop.nextitem }}{{ x }}{% else %}none{% endfor %}", "b"),
        (
            "{% for x in [m, [m]] recursive %}{{ x if x is string else loop(x) }}{% endfor %}",
            "abab",
        ),
        ("{% for k, v in {'a': 1}.items() %}{{ k ~ v ~ none ~ [1] }}{% endfor %}", "a1None[1]"),
        (
            "{{ m[1:] | first }}{{ m[::-1] | join(',') }}{{ m | map('upper') | list }}",
            "bb,a['A', 'B']",
        ),
        (
            "{% macro f(x) %}<{{ x }}{{ caller() }}>{% endmacro %}{% call f(5) %}!{% endcall %}",
            "<5!>",
        ),
        ("{{ '%03d' % 7 }}{{ '{:>3}'.format('a') }}{{ 'ab'.replace('a', 'c') }}", "007  acb"),
        (
            "{{ 'ab' | replace('a', 'c') }}{{ 'a' | center(3) }}{{ 'a\nb' | indent(2) }}",
            "cb a a\n  b",
        ),
        (
            "{{ 2 ** 10 }}{{ 'ab' * 2 }}{{ [1] + [2] }}{{ 20000 | string }}{{ 99999 + 1 }}",
            "1024abab[1, 2]20000100000",
        ),
        (
            "{{ 'b' in m }}{{ m == ['a', 'b'] }}{{ 'x' is in m }}{{ '' is undefined }}",
            "TrueTrueFalseFalse",
        ),
        ("{{ m | selectattr('x') | list }}{{ (m | batch(1) | list)[0] }}", "[]['a']"),
        ("{{ missing }}{{ missing | default('d') }}{% for x in missing %}{% endfor %}", "d"),
    ],
)
def test_ordinary_templates_know_no_difference(source, text):
    assert rendered(source, m=["a", "b"]) == text


def test_a_long_conversation_is_far_within_the_bounds():
    source = (
        "{% for m in messages %}{% if m.role == 'user' and m == messages[-1] %}!{% endif %}"
        "{{ '<' + m.role + '>' ~ m.content | trim }}{% endfor %}"
    )
    messages = [{"role": "user", "content": f"{i} " + "x" * 2000} for i in range(2048)]
    assert rendered(source, messages=messages).count("<user>") == 2048
