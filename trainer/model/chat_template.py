"""chat_template_of: our template in the language of tokenizers, for those who use a model's folder.

What `tokenizer.apply_chat_template` then makes of a conversation of text is what the model read in
training. Videos it does not know: they are the renderer's.
"""

from __future__ import annotations

import json

from trainer.data.template import Template

_BODY = (
    "{{ begin }}"
    "{% if system and not (messages | selectattr('role', 'equalto', 'system') | list) %}"
    "{{ before['system'] + system + stop + after }}"
    "{% endif %}"
    "{% for message in messages %}"
    "{{ before[message['role']] }}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endif %}"
    "{{ stop + after }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ before['assistant'] }}{% endif %}"
)


def chat_template_of(template: Template, *, system: str) -> str:
    """A chat template of Jinja; `system` is said where a conversation does not say it itself."""
    names = {
        "begin": template.begin,
        "before": dict(template.before),
        "after": template.after,
        "system": system,
    }
    sets = [f"{{% set {name} = {json.dumps(value)} %}}" for name, value in names.items()]
    # An empty stop is the tokenizer's end of text, which Jinja is given by this name.
    stop = json.dumps(template.stop) if template.stop else "eos_token"
    return "".join([*sets, f"{{% set stop = {stop} %}}", _BODY])
