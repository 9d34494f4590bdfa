#!/bin/bash
cp -r /solution/files/. /app/
