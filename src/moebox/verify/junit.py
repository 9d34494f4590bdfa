"""Check results as JUnit XML, which every CI system reads: a suite for each check, a case for each probe."""

from xml.etree import ElementTree as xml

from moebox.core.verdict import CheckResults, Probe


def to_junit_xml(results: CheckResults) -> str:
    top = xml.Element("testsuites", name=f"moebox verify {results.model}")
    for check in results.rungs:
        # A check that was not run is one skipped case
        probes = check.probes or (Probe(name=check.name, verdict="skip", reason=check.reason),)
        suite = xml.SubElement(
            top,
            "testsuite",
            name=check.name,
            tests=str(len(probes)),
            time=f"{check.seconds:.3f}",
            failures=str(sum(probe.verdict == "fail" for probe in probes)),
            skipped=str(sum(probe.verdict == "skip" for probe in probes)),
            errors="0",
        )
        for probe in probes:
            case = xml.SubElement(
                suite, "testcase", classname=f"moebox.{check.name}", name=probe.name, time=f"{probe.seconds:.3f}"
            )
            text = "".join(letter for letter in probe.reason if letter.isprintable())  # XML has no control characters
            if probe.verdict in ("fail", "skip"):
                xml.SubElement(case, "failure" if probe.verdict == "fail" else "skipped", message=text)
            elif text:
                xml.SubElement(case, "system-out").text = f"warning: {text}" if probe.verdict == "warn" else text
    xml.indent(top)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + xml.tostring(top, encoding="unicode") + "\n"
