"""Every setting: types, defaults, help and checks in one place. Imports no torch, so that help is instant."""
