"""The site's 404 page, where it is the same text for everybody: then it is rendered once a process.

That is certain of Django's own handler with no ``404.html``, or with one that is made of nothing but text, blocks and
what it extends. Rendering it is the largest part of what a blocked request costs Django.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.signals import setting_changed
from django.http import Http404, HttpRequest
from django.template import TemplateDoesNotExist, engines, loader
from django.template.backends.django import DjangoTemplates
from django.template.base import Node, TextNode
from django.template.defaulttags import CommentNode, LoadNode
from django.template.loader_tags import BlockNode, ExtendsNode
from django.template.loaders.cached import Loader as CachedLoader
from django.urls import get_resolver, get_urlconf
from django.views.defaults import ERROR_404_TEMPLATE_NAME, page_not_found

_STATIC = (TextNode, BlockNode, CommentNode, LoadNode, ExtendsNode)
#: The page, once it has been rendered; ``False`` where it may be another one for another request.
_body: bytes | bool | None = None


def static_body(request: HttpRequest, *, now: bool = False) -> bytes | None:
    """The 404 page's bytes if no request could get others, else ``None``. Raises what rendering it raises.

    ``now`` renders nothing: it is ``None`` until somebody else has.
    """
    global _body
    handler: Any = get_resolver(get_urlconf()).resolve_error_handler(404)
    if settings.DEBUG or handler is not page_not_found or (now and _body is None):
        return None
    if _body is None:
        _body = page_not_found(request, Http404()).content if _is_static_template() else False
    return _body if isinstance(_body, bytes) else None


def _is_static_template() -> bool:
    backends = engines.all()
    if not all(isinstance(backend, DjangoTemplates) and _is_cached(backend) for backend in backends):
        return False  # a template may come, change or go
    try:
        found: Any = loader.get_template(ERROR_404_TEMPLATE_NAME)
    except TemplateDoesNotExist:
        return True
    return _is_static(found.template.nodelist, found.template.engine)


def _is_cached(backend: DjangoTemplates) -> bool:
    return all(isinstance(each, CachedLoader) for each in backend.engine.template_loaders)


def _is_static(nodes: Any, engine: Any) -> bool:
    for node in nodes:
        if type(node) not in _STATIC:
            return False
        if isinstance(node, ExtendsNode):
            named: Any = node.parent_name
            parent = named.var
            if not isinstance(parent, str) or named.filters:
                return False
            if parent == ERROR_404_TEMPLATE_NAME or not _is_static(engine.get_template(parent).nodelist, engine):
                return False  # one that extends its namesake in another folder is for Django to find
        if not all(_is_static(getattr(node, name, ()), engine) for name in Node.child_nodelists):
            return False
    return True


def _follow_settings(*, setting: str, **kwargs: Any) -> None:
    global _body
    if setting == "TEMPLATES":
        _body = None


setting_changed.connect(_follow_settings, dispatch_uid="bloomguard.answers.pages")
