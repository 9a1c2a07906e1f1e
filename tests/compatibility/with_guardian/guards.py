from bloomguard import Guard, register

from .models import Contract, Document


@register(Document)
class DocumentGuard(Guard): ...


@register(Document)
class DocumentBySlugGuard(Guard):
    lookup = "slug"
    filter = "cuckoo"


@register(Contract)
class ContractGuard(Guard):
    filter = "cuckoo"
