#!/bin/bash
mkdir -p /logs/verifier
python3 -I /tests/check.py /app > /logs/verifier/checks.txt 2>&1 && echo 1 > /logs/verifier/reward.txt \
  || echo 0 > /logs/verifier/reward.txt
cat /logs/verifier/checks.txt
