"""The ladder as JUnit XML, which every CI system reads: a suite per rung, a case per probe."""

from xml.etree import ElementTree as xml

from moebox.core.verdict import CheckResults, CheckVerdict


def to_junit_xml(ladder: CheckResults) -> str:
    """The XML text."""
    top = xml.Element("testsuites", name=f"moebox verify {ladder.model}")
    for rung in ladder.rungs:
        top.append(_suite(rung))
    xml.indent(top)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + xml.tostring(top, encoding="unicode") + "\n"


def _suite(rung: CheckVerdict) -> xml.Element:
    failed = sum(probe.verdict == "fail" for probe in rung.probes)
    skipped = sum(probe.verdict == "skip" for probe in rung.probes) + (not rung.probes)
    suite = xml.Element("testsuite", name=rung.name, tests=str(max(1, len(rung.probes))), time=f"{rung.seconds:.3f}")
    suite.set("failures", str(failed))
    suite.set("skipped", str(skipped))
    suite.set("errors", "0")
    if not rung.probes:
        _outcome(_case(suite, rung.name, rung.name, 0.0), "skip", rung.reason)
    for probe in rung.probes:
        _outcome(_case(suite, rung.name, probe.name, probe.seconds), probe.verdict, probe.reason)
    return suite


def _case(suite: xml.Element, rung: str, name: str, seconds: float) -> xml.Element:
    return xml.SubElement(suite, "testcase", classname=f"moebox.{rung}", name=name, time=f"{seconds:.3f}")


def _outcome(case: xml.Element, mark: str, reason: str) -> None:
    text = "".join(letter for letter in reason if letter.isprintable())  # XML 1.0 has no control characters
    if mark in ("fail", "skip"):
        xml.SubElement(case, "failure" if mark == "fail" else "skipped", message=text)
    elif text:
        xml.SubElement(case, "system-out").text = f"warning: {text}" if mark == "warn" else text
