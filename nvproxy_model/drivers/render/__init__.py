"""Findings and histories for people and services: text, Markdown, SARIF, HTML, pictures."""
