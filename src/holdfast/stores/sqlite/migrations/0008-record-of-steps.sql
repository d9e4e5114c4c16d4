-- compatible: keep a record of the steps that the store has gone through

create table schema_step (
    number integer primary key not null,
    name text not null,
    at integer not null,
    version text not null
);
