-- compatible: let SQL producers set the options of a run

-- Options of the view `intent`. `on conflict` works only for views whose columns are columns of their table. The trigger
-- moves the values to `options` and `retention`, so all of these are null in every row.
alter table runs
    add column asked_max_run interval,
    add column asked_max_suspend interval,
    add column asked_retention interval,
    add column asked_undelivered text,
    add column asked_max_attempts integer,
    add column asked_by text;
