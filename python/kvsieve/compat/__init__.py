# SPDX-License-Identifier: Apache-2.0
"""The names and signatures that engines call today."""
