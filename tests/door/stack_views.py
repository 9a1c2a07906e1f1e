"""Views and pages for the sites of :mod:`tests.door.stack_sites`."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpResponse, HttpResponseNotFound, HttpResponseRedirect, JsonResponse
from django.middleware.csrf import get_token
from django.shortcuts import aget_object_or_404, get_object_or_404
from django.template import engines
from django.template.response import TemplateResponse
from django.utils.translation import get_language
from django.views.decorators import cache as caching
from django.views.decorators import clickjacking, common, csrf, gzip, http, vary
from django.views.generic import DetailView

from tests.shop.models import Article, Product

LONG = "<h1>Nothing to be found</h1>" + "<p>Have a look at what there is.</p>" * 12

# -- views: module-level functions, or closures over constants and models alone


def by_pk(model, how):
    def view(request, pk):
        found = get_object_or_404(model, pk=pk)
        if how == "template":
            return TemplateResponse(request, engines["django"].from_string("{{ pk }} {{ added }}"), {"pk": found.pk})
        if how == "redirect":
            return HttpResponseRedirect("/elsewhere/")
        if how == "token":
            return HttpResponse(f"{found.pk} {get_token(request)}")
        return HttpResponse(f"{found.pk} {get_language()} " + LONG)

    return view


def by_pk_async(model):
    async def view(request, pk):
        return HttpResponse(f"{(await aget_object_or_404(model, pk=pk)).pk}")

    return view


def by_slug(request, slug):
    return HttpResponse(get_object_or_404(Article, slug=slug, deleted=False).slug)


class Detail(DetailView):
    model = Product

    def render_to_response(self, context, **kwargs):
        return HttpResponse(f"detail {self.object.pk}")


# These do more for an absent row than answer 404, so no route names them.


def own_page(request, pk):
    found = Product.objects.filter(pk=pk).first()
    return HttpResponse(f"own {found.pk}") if found else HttpResponse("an own page", status=404)


def remembers(request, pk):
    request.session["last"] = pk
    return HttpResponse(get_object_or_404(Product, pk=pk).pk)


def with_cookie(request, pk):
    found = Product.objects.filter(pk=pk).exists()
    response = HttpResponse(str(found), status=200 if found else 404)
    response.set_cookie("last", str(pk))
    return response


DECORATORS = {
    "cache_page": caching.cache_page(60),
    "cache_control": caching.cache_control(max_age=30),
    "never_cache": caching.never_cache,
    "vary_on_cookie": vary.vary_on_cookie,
    "vary_on_headers": vary.vary_on_headers("Accept"),
    "csrf_exempt": csrf.csrf_exempt,
    "csrf_protect": csrf.csrf_protect,
    "ensure_csrf_cookie": csrf.ensure_csrf_cookie,
    "gzip_page": gzip.gzip_page,
    "conditional_page": http.conditional_page,
    "login_required": login_required,
    "require_GET": http.require_GET,
    "require_safe": http.require_safe,
    "xframe_exempt": clickjacking.xframe_options_exempt,
    "no_append_slash": common.no_append_slash,
}


# -- pages for what is not found


def page_plain(request, exception):
    return HttpResponseNotFound(LONG)


def page_by_path(request, exception):
    return HttpResponseNotFound(f"{request.path} {exception} {LONG}")


def page_json(request, exception):
    return JsonResponse({"detail": "Not found."}, status=404)


def page_template(request, exception):
    return TemplateResponse(request, engines["django"].from_string("{{ 1|add:1 }} not found {{ added }}"), status=404)


def page_token(request, exception):
    return HttpResponseNotFound(f"<form>{get_token(request)}</form>")


def page_visitor(request, exception):
    return HttpResponseNotFound(f"not found, {getattr(request, 'visitor', '-')} visitor {get_language()}")


def page_user(request, exception):
    return HttpResponseNotFound(f"not found, {getattr(request, 'user', None)}")


def page_redirect(request, exception):
    return HttpResponseRedirect("/")


def page_found(request, exception):
    return HttpResponse("a page for what is not found")


def page_own_cache_control(request, exception):
    return HttpResponseNotFound("not found", headers={"Cache-Control": "max-age=60"})


def page_fails(request, exception):
    raise ValueError("the page fails")


CALM_PAGES = (None, page_plain, page_plain, page_plain, page_by_path, page_json, page_template)
PAGES = (page_plain, page_plain, page_by_path, page_json, page_template, page_token, page_visitor, page_user)
RARE_PAGES = (page_redirect, page_found, page_own_cache_control, page_fails)
