"""ScaleUp objects, which survive a restart of the controller. Start with `scale_up_record`."""
