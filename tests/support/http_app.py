"""HttpApp with fakes around it."""

from typing import Any

from chairlift.cluster.config import HttpConfig
from chairlift.cluster.tenants import ANONYMOUS, Tenants
from chairlift.deployments.http import HttpApp
from chairlift.router.chat_template import ChatTemplate
from support.fake_router import FakeRouter
from support.fake_tokenizer import FakeTokenizer

CONTEXT_LENGTH = 100
MAX_CHOICES = 8
MODEL = "fake"
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
"""``user: hi`` is 8 tokens, and ``assistant:`` with the line's end 11 more."""

USER = {"role": "user", "content": "hi"}
CHAT = {"messages": [USER]}
CHAT_TOKENS = len("user: hi\nassistant:")


def http_app(router: Any = None, **changes: Any) -> HttpApp:
    options: dict[str, Any] = {
        "model_name": MODEL,
        "context_length": CONTEXT_LENGTH,
        "config": HttpConfig(),
        "max_choices": MAX_CHOICES,
        "tenants": Tenants({}, ANONYMOUS),
    }
    template = changes.pop("template", ChatTemplate(TEMPLATE))
    tokenizer = changes.pop("tokenizer", FakeTokenizer())
    return HttpApp(router or FakeRouter(), tokenizer, template, **(options | changes))
