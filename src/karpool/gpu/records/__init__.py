"""ScaleUp objects, which survive a restart. Start with `scale_up_record`."""
