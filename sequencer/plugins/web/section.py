"""The section `webhooks` of orchestration.yaml."""

from __future__ import annotations

from sequencer.plugins.web.webhook_settings import WebhookOptions
from sequencer.project.sections import ConfigSection
from sequencer.project.settings import Settings


def get_webhook_options(settings: Settings) -> WebhookOptions:
    """Return the section `webhooks` of *settings*."""
    options: WebhookOptions = settings.section("webhooks")
    return options


SECTION = ConfigSection(WebhookOptions, WebhookOptions)
