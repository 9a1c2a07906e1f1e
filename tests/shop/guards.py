import os

from django.db.models import Q

from bloomguard.guards import Guard, register
from tests.support.patience import be_patient

from .models import Article, Diary, Order, Place, Price, Product

if "BLOOMGUARD_CHILD" in os.environ:
    be_patient()  # in processes that tests start, of whatever server; the tests' own does it by a fixture


@register(Product)
class ProductGuard(Guard):
    routes = ["product", "product-str", "product-async", "api:product"]


@register(Order)
class OrderGuard(Guard):
    routes = ["order", "order-str"]


@register(Article)
class ArticleGuard(Guard):
    lookup = "slug"
    routes = ["article", "article-str"]
    alive = Q(deleted=False)


@register(Place)
class PlaceGuard(Guard):
    lookup = ("country", "slug")
    routes = {"place": {"country": "code"}}


@register(Price)
class PriceGuard(Guard):
    lookup = "amount"
    routes = ["price"]


@register(Diary)
class DiaryGuard(Guard):
    lookup = "day"
    routes = ["diary"]
